"""Development tools of this repository; they are not installed with the packages."""
