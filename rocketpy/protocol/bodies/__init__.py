"""Typed JSON bodies of requests and responses.

Other bodies are message records (`message.record`), batches (`message.batch`), the bytes of one message, or
settings as Java properties (codes 25, 26, 318, 319).
"""

from rocketpy.protocol.bodies.admin import *
from rocketpy.protocol.bodies.assignment import *
from rocketpy.protocol.bodies.base import *
from rocketpy.protocol.bodies.client import *
from rocketpy.protocol.bodies.offsets import *
from rocketpy.protocol.bodies.pop import *
from rocketpy.protocol.bodies.route import *
from rocketpy.protocol.bodies.topic import *
