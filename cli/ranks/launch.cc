#include "ranks/launch.h"

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "support/signals.h"

namespace qkv::cli {
namespace {

int number(const char* text, int otherwise) {
  int value = otherwise;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), value);
  return value;
}

std::string& label() {
  static std::string text;
  return text;
}

}  // namespace

Launch launch() {
  for (const auto& [size, rank] :
      {std::pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), {"PMI_SIZE", "PMI_RANK"}}) {
    if (const char* const text = std::getenv(size)) return {true, number(text, 1), number(std::getenv(rank), 0)};
  }
  if (const char* const rank = std::getenv("PMIX_RANK"))
    return {true, number(std::getenv("SLURM_STEP_NUM_TASKS"), 1), number(rank, 0)};
  return {};
}

std::string complaint_about_copies(const std::string& command, bool shares, bool parallel) {
  const int copies = launch().ranks;
  if (copies < 2 || command == "info" || parallel) return {};
  return "mpirun started " + std::to_string(copies) + " copies, and each would do the whole work: " +
         (shares ? "add --parallel METHOD, or start it without mpirun"
                 : "qkv " + command + " cannot share its work, start it without mpirun");
}

const std::string& rank_label() { return label(); }
void set_rank_label(std::string text) { label() = std::move(text); }

bool leave_it_to_the_first() {
  if (launch().rank == 0) return false;
  set_last_words({});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return true;
}

void let_the_cause_end_first() {
  if (launch().launched) std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace qkv::cli
