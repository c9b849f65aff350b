// Layers: everything that qkv::nn offers.
#pragma once

#include "qkv/nn/average.h"
#include "qkv/nn/cross_entropy.h"
#include "qkv/nn/dropout.h"
#include "qkv/nn/embedding.h"
#include "qkv/nn/latent_attention.h"
#include "qkv/nn/layer_norm.h"
#include "qkv/nn/mlp.h"
#include "qkv/nn/self_attention.h"
#include "qkv/nn/sharding.h"
