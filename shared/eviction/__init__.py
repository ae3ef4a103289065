"""Which idle blocks give their pages first, in every tier."""

from shared.eviction.guard import GUARDED_SHARE as GUARDED_SHARE
from shared.eviction.guard import Guard as Guard
from shared.eviction.hazard import bin_of as bin_of
from shared.eviction.order import RECENT_NS as RECENT_NS
from shared.eviction.order import STALE_MIN as STALE_MIN
from shared.eviction.order import EvictionName as EvictionName
from shared.eviction.order import EvictionOrder as EvictionOrder
from shared.eviction.order import compute_share as compute_share
from shared.eviction.order import layer_share as layer_share
from shared.eviction.returns import UNKNOWN_KIND as UNKNOWN_KIND
from shared.eviction.returns import Kinds as Kinds
from shared.eviction.returns import ReturnModel as ReturnModel
