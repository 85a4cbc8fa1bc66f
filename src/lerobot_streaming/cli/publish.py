"""Publishes a sidecar with its dataset, for all who stream it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lerobot_streaming.errors import AccessError, FetchError, OptionError
from lerobot_streaming.index.published import SIDECAR_BRANCH, SIDECAR_FOLDER
from lerobot_streaming.storage.http_session import hub_utils

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
        if place.repo_type == "bucket":
            _check_bucket(repo_id)
        else:
            HfApi().auth_check(repo_id, repo_type=place.repo_type, write=True)
    except HfHubHTTPError as error:
        raise AccessError(
            f"--push needs the right to write to {place.repo_type} {repo_id!r}, which this token does not "
            f"have ({error.response.status_code}). Log in with `hf auth login`, or set HF_TOKEN. Nothing was "
            "built."
        ) from error
    except (httpx.HTTPError, OSError) as error:
        raise FetchError(f"could not ask the Hub for the right to write to {repo_id!r}: {error}") from error


def _check_bucket(repo_id: str) -> None:
    """Asks for what every upload to a bucket begins with: there is no call that only asks for the right."""
    from huggingface_hub import constants, get_session  # noqa: PLC0415 - heavy

    utils = hub_utils()
    url = f"{constants.ENDPOINT}/api/buckets/{repo_id}/xet-write-token"
    utils.hf_raise_for_status(get_session().get(url, headers=utils.build_hf_headers()))


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
    except (httpx.HTTPError, OSError, RuntimeError) as error:  # The client's own, of a failed upload.
        raise FetchError(
            f"uploading the sidecar to {repo_id!r} failed: {error}; it lies at {sidecar}, try again"
        ) from error
    return f"hf://datasets/{repo_id}@{SIDECAR_BRANCH}/{path}"
