#include "dist/open_mpi.h"

#include <dlfcn.h>

#include <array>

#include "core/check.h"

namespace qkv::inline v0::dist {
namespace {

std::string library_version(void* library) {
  const auto get = reinterpret_cast<int (*)(char*, int*)>(::dlsym(library, "MPI_Get_library_version"));
  if (get == nullptr) return "no MPI";
  std::array<char, 8192> text{};  // MPICH's MPI_MAX_LIBRARY_VERSION_STRING, the longest of all
  int length = 0;
  get(text.data(), &length);
  const std::string all(text.data());
  return all.substr(0, all.find('\n'));
}

}  // namespace

OpenMpi::OpenMpi(const std::string& library) {
  // Global: Open MPI loads plug-ins of its own, which look for its symbols.
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* const reason = ::dlerror();
    fail<UnsupportedError>("Mpi", "MPI needs Open MPI's library (Debian: apt-get install openmpi-bin): got ",
                           reason == nullptr ? "no reason" : reason);
  }
  version = library_version(handle);
  const auto find = [&](auto& target, const char* name) {
    void* const symbol = ::dlsym(handle, name);
    if (symbol == nullptr)
      fail<UnsupportedError>("Mpi", "the library must be Open MPI, version 4 or 5: ", library, " is ", version, " and has no ",
                             name);
    target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(symbol);
  };
  find(comm_world, "ompi_mpi_comm_world");
  find(byte, "ompi_mpi_byte");
  find(errors_return, "ompi_mpi_errors_return");
  find(request_null, "ompi_request_null");
  find(init_thread, "MPI_Init_thread");
  find(initialized, "MPI_Initialized");
  find(query_thread, "MPI_Query_thread");
  find(finalize, "MPI_Finalize");
  find(comm_rank, "MPI_Comm_rank");
  find(comm_size, "MPI_Comm_size");
  find(comm_dup, "MPI_Comm_dup");
  find(comm_free, "MPI_Comm_free");
  find(comm_set_errhandler, "MPI_Comm_set_errhandler");
  find(isend, "MPI_Isend");
  find(irecv, "MPI_Irecv");
  find(testsome, "MPI_Testsome");
  find(barrier, "MPI_Barrier");
  find(error_string, "MPI_Error_string");
}

}  // namespace qkv::inline v0::dist
