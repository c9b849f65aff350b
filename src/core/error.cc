// The one home of the exception classes' virtual tables, so that a type thrown in one library is caught in another.
#include "qkv/error.h"

namespace qkv::inline v0 {

Error::~Error() = default;
ShapeError::~ShapeError() = default;
OptionError::~OptionError() = default;
UnsupportedError::~UnsupportedError() = default;
CacheFullError::~CacheFullError() = default;
FormatError::~FormatError() = default;
IoError::~IoError() = default;

FormatError::FormatError(const std::string& text, std::uint64_t byte_offset)
    : Error(text + " (at byte " + std::to_string(byte_offset) + ")"), byte_offset_(byte_offset) {}

}  // namespace qkv::inline v0
