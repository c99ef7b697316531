"""The machine below: extras, forks, Java."""
