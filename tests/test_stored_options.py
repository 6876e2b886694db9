from __future__ import annotations

from mainspring import Mainspring
from mainspring.stored_options import StoredOptions


def test_the_key_of_every_feature_is_declared() -> None:
    runtime = Mainspring("memory://").runtime
    _ = runtime.timers, runtime.people_feature  # these add their features
    keys = [feature.option for feature in runtime.features.all if feature.option is not None]
    assert len(keys) == len(set(keys)) > 5
    assert set(keys) <= StoredOptions.__annotations__.keys()
