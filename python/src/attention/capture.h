// A Capture and what it saw, as one Python object.
#pragma once

#include "qkv/capture.h"

namespace qkv::python {

struct CaptureObject {
  Capture look;
  CaptureResult seen{};
};

}  // namespace qkv::python
