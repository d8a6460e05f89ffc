"""How strong the tests are: small changes of the code, of which each should make a test fail."""
