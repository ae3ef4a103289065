"""Every message that crosses a process border: frozen, slotted, typed; JSON on the wire, validated
on arrival.

New fields get defaults, so that services of two releases understand each other. Instants on the
wire are wall clock; anything that must survive clock skew is a duration. Bulk integers travel as
base64 (`codec.pack_ints`).
"""

from shared.wire.messages.adapters import *
from shared.wire.messages.advisories import *
from shared.wire.messages.agents import *
from shared.wire.messages.codec import *
from shared.wire.messages.jobs import *
from shared.wire.messages.kv import *
from shared.wire.messages.registry import *
from shared.wire.messages.services import *
from shared.wire.messages.turns import *
from shared.wire.messages.workers import *
