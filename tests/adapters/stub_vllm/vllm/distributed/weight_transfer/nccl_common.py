def trainer_init(settings):
    raise NotImplementedError
