// Attention itself: everything that the core library (qkv::qkv) offers.
#pragma once

#include "qkv/attention.h"
#include "qkv/context.h"
#include "qkv/convert.h"
#include "qkv/derivatives.h"
#include "qkv/error.h"
#include "qkv/kv_cache.h"
#include "qkv/linear_attention.h"
#include "qkv/mask.h"
#include "qkv/rotary.h"
#include "qkv/state_dict.h"
#include "qkv/tensor.h"
#include "qkv/top_keys.h"
#include "qkv/types.h"
#include "qkv/varlen.h"
#include "qkv/version.h"
#include "qkv/view.h"
