"""The shared memory as numpy arrays, a view for each kind of segment.

For inspection, checks and tests: a view copies nothing, and reading one takes no lock, so two
fields of a record may be of different moments. The hot paths are in the native core.
"""

from wheeld_core.views.events import Events, beside_of, widened, wider, with_beside
from wheeld_core.views.registry import RegistryView
from wheeld_core.views.sharing import DirectoryView, PoolsView, WatchView
from wheeld_core.views.structs import (
    CLOCKS,
    Field,
    dtype_of,
    expiration_dtype,
    gathered,
    layout,
    record,
    records,
)
from wheeld_core.views.wheel import SlotsView, WheelView, holder_words

__all__ = [
    "CLOCKS",
    "DirectoryView",
    "Events",
    "Field",
    "PoolsView",
    "RegistryView",
    "SlotsView",
    "WatchView",
    "WheelView",
    "beside_of",
    "dtype_of",
    "expiration_dtype",
    "gathered",
    "holder_words",
    "layout",
    "record",
    "records",
    "widened",
    "wider",
    "with_beside",
]
