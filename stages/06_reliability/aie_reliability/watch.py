"""A folder of models that is looked at every second: what appears there is loaded, what vanishes is unloaded.

A version must appear by rename: it is written under a name that readers pass over (such as `3.tmp`) and renamed when it
is complete, which is one step for whoever looks. For those who copy in place all the same there is a second guard: a
version is loaded only when two looks in a row find the same files with the same sizes and times.

What is done, model by model:

    a newest version that is new, or whose files changed     it is loaded
    it failed                                                not again until its files change
    the newest was removed                                   the one before it is loaded again: that is how to go back
    the whole model was removed                              it is unloaded
    somebody loaded or unloaded by hand                      stays as it is until the folder changes

Polling instead of inotify, which knows nothing of network file systems; a look costs a `stat` per file.
"""

import logging
import threading
from collections.abc import Mapping, Sequence

from aie_engine import AieError, ModelVersion
from aie_reliability.errors import ModelBusyError
from aie_reliability.loading import Catalog
from aie_server import ModelControl

__all__ = ["RepositoryWatcher"]

_log = logging.getLogger("aie.models")

_Seen = dict[str, ModelVersion | None]  # the newest version of each model; None: it has no version


class RepositoryWatcher:
    """`look` is one look; after `start`, a thread takes one every `poll_s` seconds until `close`.

    served: what is loaded already, so that the first look does not load it again.
    """

    def __init__(
        self, catalog: Catalog, control: ModelControl, served: Sequence[ModelVersion] = (), *, poll_s: float = 1.0
    ) -> None:
        self._catalog = catalog
        self._control = control
        self._poll_s = poll_s
        self._acted: _Seen = {version.model: version for version in served}  # upon which the last thing was done
        self._last: _Seen | None = None  # the look before
        self._complaint = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="aie-models-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Returns when no further look will be taken. A load that was begun goes on."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Begins what has to be done, and waits for nothing."""
        try:
            now = _newest(self._catalog.scan())
        except AieError as error:  # a network folder that is away for a while is no reason to unload anything
            self._complain(str(error))
            return
        self._complain("")
        before, self._last = self._last, now
        if before is None:
            return
        for name in [*now, *(self._acted.keys() - now.keys())]:
            newest = now.get(name)
            if newest == before.get(name) and (name in now) == (name in before):
                self._act(name, newest)

    def _act(self, name: str, newest: ModelVersion | None) -> None:
        if self._acted.get(name) == newest:
            return
        try:
            if newest is None:
                _log.info("%s was removed from the repository", name)
                self._control.unload(name)
            else:
                self._control.load(name, newest.version)
        except ModelBusyError:
            return  # at the next look, then
        except AieError as error:
            _log.warning("%s: %s", name, error)
        if newest is None:
            self._acted.pop(name, None)
        else:
            self._acted[name] = newest

    def _complain(self, complaint: str) -> None:
        """Once, not at every look."""
        if complaint and complaint != self._complaint:
            _log.warning("%s", complaint)
        self._complaint = complaint

    def _watch(self) -> None:
        while not self._closing.wait(self._poll_s):
            try:
                self.look()
            except Exception:  # a watcher that ends with it would never look again
                _log.exception("looking at the model repository failed")


def _newest(models: Mapping[str, Sequence[ModelVersion]]) -> _Seen:
    return {name: versions[-1] if versions else None for name, versions in models.items()}
