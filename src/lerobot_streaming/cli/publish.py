"""Publishes a sidecar with its dataset, for all who stream it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lerobot_streaming.errors import AccessError, FetchError, OptionError
from lerobot_streaming.index.published import SIDECAR_BRANCH, SIDECAR_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.places import DatasetPlace


def check_publishable(place: DatasetPlace, repo_id: str) -> None:
    """Refuses what cannot be published, before any work.

    Args:
        place: Where the dataset was found.
        repo_id: Hub id.

    Raises:
        OptionError: The dataset does not lie on the Hub.
        AccessError: The token may not write to it.
        FetchError: The Hub could not be asked.
    """
    if place.published is None:
        raise OptionError(
            f"--push publishes the sidecar of a dataset on the Hub, but {repo_id!r} is read from "
            f"{place.reader.root}; a local or unpinned root has no place on the Hub. Nothing was built."
        )
    import httpx  # noqa: PLC0415 - heavy
    from huggingface_hub import HfApi  # noqa: PLC0415 - heavy
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - heavy

    try:
        HfApi().auth_check(repo_id, repo_type=place.repo_type, write=True)
    except HfHubHTTPError as error:
        raise AccessError(
            f"--push needs the right to write to {place.repo_type} {repo_id!r}, which this token does not "
            f"have ({error.response.status_code}). Log in with `hf auth login`, or set HF_TOKEN. Nothing was "
            "built."
        ) from error
    except (httpx.HTTPError, OSError) as error:
        raise FetchError(f"could not ask the Hub for the right to write to {repo_id!r}: {error}") from error


def publish(place: DatasetPlace, identity: SidecarIdentity, sidecar: Path) -> str:
    """Uploads a sidecar: to the branch `lerobot-sidecars` of a dataset, made if absent, or into the bucket.

    Args:
        place: Where the dataset was found.
        identity: What the sidecar belongs to.
        sidecar: The file.

    Returns:
        Where it lies now, for people.

    Raises:
        AccessError: The Hub refuses.
        FetchError: The upload failed.
    """
    import httpx  # noqa: PLC0415 - heavy
    from huggingface_hub import HfApi  # noqa: PLC0415 - heavy
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - heavy

    api, repo_id = HfApi(), identity.repo_id
    path = f"{SIDECAR_FOLDER}/{identity.file_name()}"
    try:
        if place.repo_type == "bucket":
            api.batch_bucket_files(repo_id, add=[(sidecar, path)])
            return f"hf://buckets/{repo_id}/{path}"
        api.create_branch(repo_id, branch=SIDECAR_BRANCH, repo_type="dataset", exist_ok=True)
        api.upload_file(
            path_or_fileobj=sidecar,
            path_in_repo=path,
            repo_id=repo_id,
            repo_type="dataset",
            revision=SIDECAR_BRANCH,
            commit_message=f"Sidecar of commit {identity.revision}",
        )
    except HfHubHTTPError as error:
        raise AccessError(
            f"the Hub refused to take the sidecar of {repo_id!r} ({error.response.status_code}); it lies at "
            f"{sidecar}"
        ) from error
    except (httpx.HTTPError, OSError) as error:
        raise FetchError(f"uploading {sidecar} to {repo_id!r} failed: {error}") from error
    return f"hf://datasets/{repo_id}@{SIDECAR_BRANCH}/{path}"
