def packed_nccl_broadcast_producer(**settings):
    raise NotImplementedError
