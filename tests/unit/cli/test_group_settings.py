"""The settings of a consumer group: the same for applications, on the command line and at brokers."""

import typer.main

from rocketpy.admin import GroupChanges, GroupSettings
from rocketpy.admin.group_settings import group_settings
from rocketpy.protocol.bodies import SubscriptionGroupConfig
from rocketpy_cli.commands.group import group_app


def test_defaults_are_those_of_a_broker() -> None:
    """A group would be created with other settings than a broker gives it."""
    assert group_settings(SubscriptionGroupConfig(group_name="g")) == GroupSettings()


def test_a_change_can_have_each_setting() -> None:
    """A type checker would reject a setting, or accept one that raises."""
    assert GroupChanges.__annotations__.keys() == GroupSettings.__annotations__.keys()


def test_commands_have_an_option_for_each_setting() -> None:
    """A setting could not be changed from the shell."""
    commands = typer.main.get_command(group_app).commands  # type: ignore[attr-defined]
    for name in ("create", "alter"):
        options = {one.name: one for one in commands[name].params}
        settings = [name for name in options if name in GroupSettings.__annotations__]
        assert settings == list(GroupSettings.__annotations__)
        assert {options[setting].default for setting in settings} == {None}
