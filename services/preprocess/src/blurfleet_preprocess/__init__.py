"""The gateway: the node's door. Image bytes in, contract, engine, sentinel, picture out."""
