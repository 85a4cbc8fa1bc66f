"""Part of lerobot_streaming: storage."""
