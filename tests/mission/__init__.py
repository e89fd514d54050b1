"""Which test, claim, recipe and page shows each row of the feature table, each worked example and each erratum."""
