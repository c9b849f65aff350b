// The library's errors as Python's: qkv.ShapeError is a ValueError too, and so on. The text is C++'s, except for
// names that Python spells differently, and for what to do about it in Python.
#include <string>

#include "bindings.h"
#include "qkv/error.h"

namespace qkv::python {

namespace {

// One Python type for each of the library's; kept for the life of the interpreter.
struct Types {
  PyObject *error, *shape, *option, *unsupported, *cache_full, *format, *io;
};
Types types;

PyObject* make(nb::module_& m, const char* name, PyObject* builtin, const char* doc) {
  const std::string full = std::string("qkv.") + name;
  nb::object bases = nb::borrow(builtin);
  if (types.error != nullptr) bases = nb::make_tuple(nb::handle(types.error), nb::handle(builtin));
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr);
  if (type == nullptr) throw nb::python_error();
  m.attr(name) = nb::handle(type);
  return type;
}

struct Phrase {
  const char *cpp, *python;
};
constexpr Phrase kPhrases[] = {{"Align::kBottomRight", "\"bottom_right\""}, {"Align::kTopLeft", "\"top_left\""}};

std::string in_python(std::string text) {
  for (const Phrase& phrase : kPhrases) {
    const std::string cpp = phrase.cpp;
    for (std::size_t at = text.find(cpp); at != std::string::npos; at = text.find(cpp))
      text.replace(at, cpp.size(), phrase.python);
  }
  if (text.find("must have stride 1") != std::string::npos) {
    text += "; a contiguous copy has it: np.ascontiguousarray(x), x.contiguous()";
  }
  return text;
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const ShapeError& error) {
    PyErr_SetString(types.shape, in_python(error.what()).c_str());
  } catch (const OptionError& error) {
    PyErr_SetString(types.option, in_python(error.what()).c_str());
  } catch (const UnsupportedError& error) {
    PyErr_SetString(types.unsupported, in_python(error.what()).c_str());
  } catch (const CacheFullError& error) {
    PyErr_SetString(types.cache_full, error.what());
  } catch (const FormatError& error) {
    PyErr_SetString(types.format, error.what());
  } catch (const IoError& error) {
    PyErr_SetString(types.io, error.what());
  } catch (const Error& error) {
    PyErr_SetString(types.error, error.what());
  }
}

}  // namespace

void bind_errors(nb::module_& m) {
  types.error = make(m, "Error", PyExc_Exception, "Base of everything that qkv raises on purpose.");
  types.shape = make(m, "ShapeError", PyExc_ValueError, "Sizes, strides or axes that do not fit together; overlap.");
  types.option = make(m, "OptionError", PyExc_ValueError, "An option whose value can never be right.");
  types.unsupported = make(m, "UnsupportedError", PyExc_NotImplementedError, "Right in itself, but qkv does not compute it.");
  types.cache_full = make(m, "CacheFullError", PyExc_RuntimeError, "A key/value cache without room: free something.");
  types.format = make(m, "FormatError", PyExc_ValueError, "A file or byte sequence that breaks its format.");
  types.io = make(m, "IoError", PyExc_OSError, "The operating system refused; the text names path and reason.");
  nb::register_exception_translator(translate);
}

}  // namespace qkv::python
