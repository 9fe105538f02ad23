"""A client of request handlers over memory://, without a broker around them."""

from __future__ import annotations
