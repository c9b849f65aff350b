#include "arrays/array.h"

#include <algorithm>
#include <cstring>

namespace qkv::python {

namespace {

struct TypeName {
  Type type;
  const char* name;
};
constexpr TypeName kTypeNames[] = {{Type::kF32, "float32"}, {Type::kF64, "float64"}, {Type::kBF16, "bfloat16"},
    {Type::kF16, "float16"}, {Type::kByte, "uint8"}, {Type::kInt32, "int32"}, {Type::kInt64, "int64"}};

std::string text(const char* function, const std::string& rest) { return "[" + std::string(function) + "] " + rest; }

// The struct module's letters, in native byte order.
Type type_of_format(const char* format, Py_ssize_t item_size) {
  struct Letter {
    char letter;
    Py_ssize_t bytes;
    Type type;
  };
  constexpr Letter kLetters[] = {{'f', 4, Type::kF32}, {'d', 8, Type::kF64}, {'e', 2, Type::kF16},
      {'?', 1, Type::kByte}, {'b', 1, Type::kByte}, {'B', 1, Type::kByte}, {'i', 4, Type::kInt32},
      {'l', 8, Type::kInt64}, {'q', 8, Type::kInt64}};
  if (format == nullptr) return Type::kByte;
  if (*format == '=' || *format == '@' || *format == '<') ++format;
  for (const Letter& known : kLetters) {
    if (known.letter == *format && format[1] == '\0' && known.bytes == item_size) return known.type;
  }
  return Type::kOther;
}

Type type_of_dlpack(nb::dlpack::dtype dtype) {
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return Type::kOther;
  if (code == Code::Float && dtype.bits == 32) return Type::kF32;
  if (code == Code::Float && dtype.bits == 64) return Type::kF64;
  if (code == Code::Float && dtype.bits == 16) return Type::kF16;
  if (code == Code::Bfloat && dtype.bits == 16) return Type::kBF16;
  if (code == Code::Int && dtype.bits == 32) return Type::kInt32;
  if (code == Code::Int && dtype.bits == 64) return Type::kInt64;
  if (dtype.bits == 8 && (code == Code::Bool || code == Code::UInt || code == Code::Int)) return Type::kByte;
  return Type::kOther;
}

// PyTorch's tensors without elements lie at address 0; a View there would mean that none is given.
void* address_or_nothing(void* address) {
  alignas(64) static char nothing[64];
  return address == nullptr ? nothing : address;
}

// DLPack's C exchange functions (DLPackExchangeAPI, dlpack.h 1.2), those of them that are called here.
using FromObject = int (*)(void* object, nb::dlpack::dltensor* tensor);
struct ExchangeApi {
  struct {
    std::uint32_t major, minor;
    void* previous;
  } header;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  FromObject from_object;
  void* current_stream;
};

// The protocols of an object's type; null: not offered. Types are inspected once and kept (PyTorch has two, Tensor and
// Parameter).
FromObject exchange_function(PyObject* type) {
  struct Known {
    PyObject* type;
    FromObject function;
  };
  static std::array<Known, 8> known{};  // guarded by the interpreter's lock
  static std::size_t next = 0;
  for (const Known& entry : known) {
    if (entry.type == type) return entry.function;
  }
  FromObject function = nullptr;
  const nb::object capsule = nb::getattr(nb::borrow(type), "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0) {
    const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api->header.major == 1) function = api->from_object;
  }
  Py_INCREF(type);
  Py_XDECREF(known[next].type);
  known[next] = {type, function};
  next = (next + 1) % known.size();
  return function;
}

}  // namespace

const char* type_name(Type type) {
  for (const TypeName& known : kTypeNames) {
    if (known.type == type) return known.name;
  }
  return "another type";
}

void throw_type_error(const char* function, const Array& array, const char* wanted) {
  throw nb::type_error(text(function, array.name() + " must be " + wanted + ": got " + array.type_text()).c_str());
}

Array::Array(const char* function, const char* name, nb::handle object) : function_(function), name_(name) {
  if (name_.ends_with('?')) {
    name_.pop_back();
    if (object.is_none()) return;
  }
  const bool named = PyTuple_CheckExact(object.ptr()) && PyTuple_Size(object.ptr()) == 2;
  if (named) object = PyTuple_GetItem(object.ptr(), 0);
  if (!read_exchange(object) && !read_buffer(object)) {
    throw nb::type_error(text(
        function, name_ + " must be an array (buffer protocol or DLPack): got " + nb::inst_name(object).c_str())
                             .c_str());
  }
  if (named) type_ = Type::kBF16;
}

Array::~Array() {
  if (buffer_) PyBuffer_Release(&*buffer_);
}

bool Array::read_buffer(nb::handle object) {
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    return false;
  }
  buffer_ = buffer;
  if (buffer.ndim > kMaxRank) throw nb::value_error(text(function_, name_ + " has more axes than 8").c_str());
  data_ = buffer.buf;
  type_ = type_of_format(buffer.format, buffer.itemsize);
  if (type_ == Type::kOther) {
    foreign_type_ = "buffer format '" + std::string(buffer.format) + "'";
    if (*buffer.format == '>' || *buffer.format == '!')
      foreign_type_ += ", the other byte order: x.astype(x.dtype.newbyteorder('='))";
  }
  writable_ = buffer.readonly == 0;
  rank_ = buffer.ndim;
  for (int axis = 0; axis < rank_; ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    sizes_[at] = buffer.shape[axis];
    const Py_ssize_t bytes = std::max<Py_ssize_t>(buffer.itemsize, 1);  // of no bytes: refused by its type
    if (buffer.strides[axis] % bytes != 0) {
      throw nb::value_error(
          text(function_, name_ + " must have strides that are whole elements: copy it first").c_str());
    }
    strides_[at] = buffer.strides[axis] / bytes;
  }
  return true;
}

void Array::read_tensor(const nb::dlpack::dltensor& tensor) {
  if (tensor.device.device_type != nb::device::cpu::value) {
    throw nb::value_error(text(
        function_, name_ + " must lie in the CPU's memory: got an array on another device; move it first (x.cpu())")
                              .c_str());
  }
  if (tensor.ndim > kMaxRank) throw nb::value_error(text(function_, name_ + " has more axes than 8").c_str());
  data_ = address_or_nothing(tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset);
  type_ = type_of_dlpack(tensor.dtype);
  if (type_ == Type::kOther) foreign_type_ = std::to_string(tensor.dtype.bits) + " bits of another kind";
  rank_ = tensor.ndim;
  std::copy_n(tensor.shape, rank_, sizes_.begin());
  std::copy_n(tensor.strides, rank_, strides_.begin());
}

bool Array::read_exchange(nb::handle object) {
  const FromObject from_object = exchange_function(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  if (from_object == nullptr) return false;
  nb::dlpack::dltensor tensor;
  if (from_object(object.ptr(), &tensor) != 0) throw nb::python_error();
  owner_ = nb::borrow(object);
  read_tensor(tensor);
  return true;
}

void Array::require(Type wanted, int rank) const {
  if (type_ != wanted) {
    throw nb::type_error(text(function_, name_ + " must be " + type_name(wanted) + ": got " + type_text()).c_str());
  }
  if (rank_ > rank) {
    throw nb::value_error(text(function_,
        name_ + " must have at most " + std::to_string(rank) + " axes: got " + shape_text(sizes_.data(), rank_))
                              .c_str());
  }
}

void Array::require_writable() const {
  if (!writable_) {
    throw nb::value_error(
        text(function_, name_ + " is written to, but the array is read-only: pass a writable one").c_str());
  }
}

}  // namespace qkv::python
