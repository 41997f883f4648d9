"""Attaching an adapter: version and signatures first, then the hooks; every outcome becomes an event."""

from __future__ import annotations

from importlib import metadata
from types import ModuleType

from packaging.specifiers import SpecifierSet

from rlaudit.capture.hooks import Adapter, Attachment, Mismatch
from rlaudit.capture.recorder import Recorder


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution; None where it isn't installed (a checkout on the path has none)."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def refusal(adapter: Adapter, version: str | None) -> str | None:
    """Why this version is not attached to; None where it may be (or isn't known: then the signatures decide)."""
    if version is None or SpecifierSet(adapter.versions).contains(version, prereleases=True):
        return None
    return f"{adapter.distribution} {version} is not supported; rlaudit knows {adapter.versions}"


def attach(adapter_module: ModuleType, module: ModuleType, recorder: Recorder) -> Attachment | None:
    """Attach ``adapter_module``'s adapter to ``module``; None, with an event that says why, where it refuses."""
    adapter: Adapter = adapter_module.ADAPTER
    version = installed_version(adapter.distribution)
    reason = refusal(adapter, version)
    if reason is None:
        try:
            attachment = Attachment(adapter, module, recorder.log)
        except Mismatch as mismatch:
            reason = str(mismatch)
    if reason is not None:
        recorder.event("hook_refused", adapter.name, reason, detail={"distribution": adapter.distribution, "version": version})
        return None
    try:
        adapter_module.attach(attachment)
    except Exception:
        attachment.detach()  # all or nothing: half an adapter would record half a truth
        raise
    recorder.event(
        "hook_attached",
        adapter.name,
        None,
        detail={"distribution": adapter.distribution, "version": version, "absent": attachment.absent, "records": adapter.records},
    )
    return attachment
