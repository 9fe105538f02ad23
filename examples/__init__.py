"""Programs that use rocketpy the way an application would."""
