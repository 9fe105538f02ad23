"""The broker's place in the cluster: registration with name servers, and the state that slaves copy."""
