"""Typed command headers: one class for each request code, and one for each response that has fields."""

from rocketpy.protocol.headers.admin import *
from rocketpy.protocol.headers.base import *
from rocketpy.protocol.headers.client import *
from rocketpy.protocol.headers.offsets import *
from rocketpy.protocol.headers.pop import *
from rocketpy.protocol.headers.pull import *
from rocketpy.protocol.headers.route import *
from rocketpy.protocol.headers.send import *
from rocketpy.protocol.headers.topic import *
from rocketpy.protocol.headers.transaction import *
