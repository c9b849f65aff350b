// The launcher's words about this process, without loading MPI: whether it is one of several ranks.
#pragma once

#include <string>

namespace qkv::cli {

/// From the environment of Open MPI's mpirun (OMPI_COMM_WORLD_SIZE), or of a launcher that speaks PMI or PMIx.
struct Launch {
  bool launched = false;
  int ranks = 1;  ///< 1 as well where the launcher does not say before MPI starts
  int rank = 0;
};
Launch launch();

/// The error where mpirun started several copies of a command that would each do the whole work; otherwise empty.
/// `info` may run so: it says what each rank sees. `shares`: it has --parallel, `parallel`: which is given.
std::string complaint_about_copies(const std::string& command, bool shares, bool parallel);

/// "rank 2 of 4: " once this process has joined the others (ranks.h); otherwise empty.
const std::string& rank_label();
void set_rank_label(std::string label);

/// On every rank but the first: gives the first time to say what all would say, since mpirun ends all when one has
/// ended. True there.
bool leave_it_to_the_first();
/// On a rank that ends because another one has: mpirun's exit code is that of the rank that ends first, which should be
/// the cause.
void let_the_cause_end_first();

}  // namespace qkv::cli
