"""Where trials live and who may write them: storages, their records, one coordinator."""
