// The library's errors as Python's: qkv.ShapeError is a ValueError too, and so on. The text is C++'s, except for
// names that Python spells differently, and for what to do about it in Python.
#include <string>

#include "bindings.h"
#include "qkv/error.h"

namespace qkv::python {

namespace {

template <class Kind> bool is(const Error& error) { return dynamic_cast<const Kind*>(&error) != nullptr; }

struct ErrorType {
  const char* name;
  PyObject** base;
  const char* doc;
  bool (*matches)(const Error&);
  PyObject* made = nullptr;  // kept for the life of the interpreter
};
// The first is the base of the others, and what matches no other.
ErrorType types[] = {
    {"Error", &PyExc_Exception, "Base of everything that qkv raises on purpose.", [](const Error&) { return false; }},
    {"ShapeError", &PyExc_ValueError, "Sizes, strides or axes that do not fit together; overlap.", is<ShapeError>},
    {"OptionError", &PyExc_ValueError, "An option whose value can never be right.", is<OptionError>},
    {"UnsupportedError", &PyExc_NotImplementedError, "Right in itself, but qkv does not compute it.",
        is<UnsupportedError>},
    {"CacheFullError", &PyExc_RuntimeError, "A key/value cache without room: free something.", is<CacheFullError>},
    {"FormatError", &PyExc_ValueError, "A file or byte sequence that breaks its format.", is<FormatError>},
    {"IoError", &PyExc_OSError, "The operating system refused; the text names path and reason.", is<IoError>}};

std::string in_python(std::string text) {
  const auto replace = [&](const std::string& cpp, const char* python) {
    for (std::size_t at = text.find(cpp); at != std::string::npos; at = text.find(cpp))
      text.replace(at, cpp.size(), python);
  };
  replace("Align::kBottomRight", "\"bottom_right\"");
  replace("Align::kTopLeft", "\"top_left\"");
  if (text.find("must have stride 1") != std::string::npos) {
    text += "; a contiguous copy has it: np.ascontiguousarray(x), x.contiguous()";
  }
  return text;
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const ErrorType* found = types;
    for (const ErrorType& type : types) found = type.matches(error) ? &type : found;
    PyErr_SetString(found->made, in_python(error.what()).c_str());
  }
}

}  // namespace

void bind_errors(nb::module_& m) {
  for (ErrorType& type : types) {
    nb::object bases = nb::borrow(*type.base);
    if (&type != types) bases = nb::make_tuple(nb::handle(types[0].made), nb::handle(*type.base));
    type.made = PyErr_NewExceptionWithDoc(("qkv." + std::string(type.name)).c_str(), type.doc, bases.ptr(), nullptr);
    if (type.made == nullptr) throw nb::python_error();
    m.attr(type.name) = nb::handle(type.made);
  }
  nb::register_exception_translator(translate);
}

}  // namespace qkv::python
