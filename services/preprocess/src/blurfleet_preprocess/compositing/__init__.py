"""From a matte to a picture. Pure functions over arrays: pictures are uint8 RGB, mixing is done in linear light."""
