from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lerobot_streaming.storage.secrets import Scrubber, hide_queries, public_url


def test_public_urls_have_no_user_information() -> None:
    assert public_url("sftp://me:pa$s@host:22/data/") == "sftp://host:22/data"
    assert public_url("s3://bucket/folder") == "s3://bucket/folder"
    assert public_url("memory://") == "memory://"
    assert public_url("simplecache::ftp://me:pw@host/a") == "simplecache::ftp://host/a"
    assert public_url("memory://x/a@b") == "memory://x/a@b"


def test_queries_are_hidden_wherever_they_stand() -> None:
    text = "GET https://cdn/x.mp4?Expires=1&Signature=abc 'http://a:1/b?c' failed?"
    assert hide_queries(text) == "GET https://cdn/x.mp4?... 'http://a:1/b?...' failed?"


def test_options_and_passwords_are_blacked_out_and_places_are_not() -> None:
    options = {
        "key": "AKIAKEY",
        "secret": "s/e+c=ret",
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:9", "aws_session_token": b"tok-en-tok"},
        "headers": [("Authorization", "Bearer hf_abcdef")],
        "anon": False,
        "n": 3,
    }
    scrubber = Scrubber("sftp://me:pass%20word@host/x", options, ["hf_extra", None])
    text = scrubber.clean(
        "AKIAKEY s/e+c=ret s%2Fe%2Bc%3Dret tok-en-tok\nBearer hf_abcdef at http://127.0.0.1:9 "
        "sftp://me:pass%20word@host/x pass word hf_extra"
    )
    for secret in ("AKIAKEY", "ret", "tok-en", "hf_", "word", "me:"):
        assert secret not in text
    assert "at http://127.0.0.1:9 sftp://host/x" in text
    assert "\n" not in text
    assert Scrubber().clean("all is well") == "all is well"


@given(
    st.text(min_size=4).filter(lambda text: text.strip() == text and "*" not in text), st.text(), st.text()
)
def test_no_secret_survives(secret: str, before: str, after: str) -> None:
    scrubber = Scrubber(options={"password": secret})
    assert " ".join(secret.split()) not in scrubber.clean(f"{before}{secret}{after}".replace("*", ""))
