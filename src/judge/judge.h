// The judge: probes for a task, and a verdict on what somebody's code answered to them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/entry.h"
#include "judge/task.h"
#include "qkv/state_dict.h"

namespace qkv::judge {

/// The sizes that a task's probes have when nobody's object fixes them. Throws OptionError for an unknown task.
Sizes default_sizes(std::string_view task);

/// "embed", "heads" ...: false for a name that is none. Throws OptionError for a size that cannot be.
bool set_size(Sizes& sizes, std::string_view name, double size);

/// Parts of an object beyond its task's contract, or lacks. Functions are their contract.
struct Owner {
  std::vector<std::string> absent = {};  ///< parameters that it lacks, by their contract names
  bool causal = false;                   ///< it hides the future by itself where the task does not ask for that
  std::optional<double> dropout = {};    ///< its rate; nothing: it drops nothing, or the task says the rate
  Metadata metadata = {};                ///< of every probe: eps; whole: all in one call; what the code names
  std::vector<Sizes> small = {};         ///< that it can be given too, for numbers that a pencil can compute
};

/// The probes of a task, with metadata (docs/practice.md lists names and keys): absent biases are zeros. Throws
/// OptionError for an unknown task.
std::vector<StateDict> make_probes(
    std::string_view task, const Sizes& sizes, std::uint64_t seed = 0, const Owner& owner = {});

/// The code's results for one probe.
struct Answer {
  StateDict tensors;     ///< "out" and what the task says; metadata: `error`, `traceback`, `skipped`, `unrun`
  bool missing = false;  ///< there is no answer
};

/// What programs of any language may add to an answer: "STAGE.NAME", "STAGE.NAME.ROUND", an array of the textbook as it
/// is after a stage, blanks as underscores.
inline bool is_step(std::string_view name) { return name.find('.') != std::string_view::npos; }

struct Mistake {
  std::string id;
  std::vector<std::string> same_as;  ///< other entries that are one and the same function here
  std::string says, hint, evidence, term, read;
  Edits edits = {};  ///< of the textbook, that make its numbers the code's
};
struct Convention {
  std::string id, says;
};
struct Check {
  std::string name;
  bool ok = false;
  std::string detail;
  bool asked = true;  ///< false: the code does not accept what the probe holds
};

struct Finding {
  std::string file, name, task;
  std::string verdict;  ///< right, convention, wrong, unknown, failed, unfilled
  std::vector<Mistake> mistakes;
  std::vector<Convention> conventions;
  std::vector<Check> checks;
  std::vector<std::string> untried;  ///< arguments of the code that no probe gives, branches that none went through
  std::vector<std::string> notes;
  std::string evidence;        ///< the smallest counter-example, as text of several lines
  int line = 0;                ///< of the code: the first whose value leaves the textbook; 0: not known
  std::string where;           ///< that line in the source, as text of several lines
  std::size_t reading = 0;     ///< of the parameters, that this is a finding of
  bool outputs_right = false;  ///< they are the textbook's in some spelling; gradients and weights may be wrong
  std::string traceback;
  int begins = 0;      ///< the line where the code is defined; 0: not known
  double seconds = 0;  ///< that all took: whoever asked says it

  bool right() const { return verdict == "right" || verdict == "convention"; }
};

/// Compares the answers with the textbook, its conventions, every mistake and, where wanted, pairs of mistakes, which
/// take most of the time. Throws OptionError for an unknown task and for probes that are not the task's.
Finding judge(
    std::string_view task, const std::vector<StateDict>& probes, const std::vector<Answer>& answers, bool pairs = true);
/// The same of a task whose `answers` may be those of one of its functions.
Finding judge_together(
    const Task& task, const std::vector<StateDict>& probes, const std::vector<Answer>& answers, bool pairs);

}  // namespace qkv::judge
