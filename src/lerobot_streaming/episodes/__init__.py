"""Part of lerobot_streaming: episodes."""
