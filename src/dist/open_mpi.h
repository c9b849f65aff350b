// The dozen functions of Open MPI that a transport needs, found at run time. Prototypes: MPI standard 3.1; handles are pointers to
// objects that the library exports, as Open MPI's mpi.h has them since 1.5. Not: what is done with them (mpi.cc).
#pragma once

#include <cstddef>
#include <string>

namespace qkv::inline v0::dist {

struct OpenMpi {
  using Handle = void*;
  using Request = void*;
  /// MPI_Status as Open MPI lays it out.
  struct Status {
    int source, tag, error, cancelled;
    std::size_t bytes;
  };
  static constexpr int kSuccess = 0, kUndefined = -32766, kTruncated = 15, kInStatus = 18, kSerialized = 2;

  /// Throws UnsupportedError: no such library, or one that is not Open MPI.
  explicit OpenMpi(const std::string& library);

  Handle comm_world, byte, errors_return;
  Request request_null;
  int (*init_thread)(int*, char***, int, int*);
  int (*initialized)(int*);
  int (*query_thread)(int*);
  int (*finalize)();
  int (*comm_rank)(Handle, int*);
  int (*comm_size)(Handle, int*);
  int (*comm_dup)(Handle, Handle*);
  int (*comm_free)(Handle*);
  int (*comm_set_errhandler)(Handle, Handle);
  int (*isend)(const void*, int, Handle, int, int, Handle, Request*);
  int (*irecv)(void*, int, Handle, int, int, Handle, Request*);
  int (*testsome)(int, Request*, int*, int*, Status*);
  int (*barrier)(Handle);
  int (*error_string)(int, char*, int*);
  std::string version;
};

}  // namespace qkv::inline v0::dist
