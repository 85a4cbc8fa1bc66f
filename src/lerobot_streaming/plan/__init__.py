"""Part of lerobot_streaming: plan."""
