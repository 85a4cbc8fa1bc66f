"""Part of lerobot_streaming: train."""
