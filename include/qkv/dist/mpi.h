// MPI as a transport: the ranks that mpirun (or srun) started. Open MPI 4 and 5 (libmpi.so.40), loaded when it is asked
// for: nothing links MPI, and where it is not installed only Mpi fails. Not: MPICH and its relatives, whose handles are
// numbers (refused by name).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "qkv/dist/transport.h"

namespace qkv::inline v0::dist {

struct MpiOptions {
  std::string library = "libmpi.so.40";            ///< a name that the loader finds, or a path
  std::size_t piece_bytes = std::size_t{1} << 30;  ///< longer messages are sent in pieces: MPI counts in int
};

/// This process as one rank of MPI_COMM_WORLD. Opening is collective. Two transports between the same ranks, which two
/// threads may use at once: `data` for work, `control` for a Guarded.
class QKV_API Mpi {
 public:
  /// Loads the library; starts MPI unless the program has, then with MPI_THREAD_SERIALIZED. Throws UnsupportedError, in
  /// one line: no library, another MPI, too few guarantees for threads. Throws OptionError for a piece above 2^31 - 1
  /// bytes or of 0.
  explicit Mpi(const MpiOptions& options = {});
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;
  /// Leaves MPI as it is: a rank that ends without close() ends as a failed one, and MPI's own end could wait for ever.
  ~Mpi();

  Transport& data();
  Transport& control();
  /// "Open MPI v4.1.4, ..."
  const std::string& version() const;
  /// The orderly end, collective: every operation is complete. Ends MPI if this object has started it. The transports
  /// are no longer to be used.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0::dist
