class SamplerChain:
    pass
