"""Stream LeRobotDataset v3 into training."""
