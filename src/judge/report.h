// A finding as text for people, and a judgement under several readings of somebody's parameters.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sentences.h"
#include "judge/judge.h"

namespace qkv::judge {

/// The code as found before it was judged.
struct Subject {
  std::string file = {}, name = {}, task = {};
  std::string verdict = {}, says = {},
              traceback = {};  ///< verdict: "failed" or "unfilled" when it could not be prepared
  Sizes sizes = {};
  Owner owner = {};
  struct Assignment {
    std::string label, convention;
  };
  std::vector<Assignment> assignments = {};   ///< readings of the parameters; at least one
  std::vector<std::string> conventions = {};  ///< ids that the first calls showed
  std::vector<std::string> promised = {};     ///< ids of conventions that a docstring excludes
  std::vector<std::string> untried = {};      ///< arguments that no call gives
  std::vector<std::string> notes = {};
  int line = 0;            ///< where it is defined; 0: not known
  std::string check = {};  ///< of `verdict`: kHasTask where nothing in the file has a task
};

/// The check that a file without any attention fails.
inline constexpr std::string_view kHasTask = "has a task";

/// Judges the answers of each reading, in turn: the first that is right, otherwise the first that is explained.
Finding judge_readings(const Subject& subject, const std::vector<StateDict>& probes,
    const std::function<std::vector<Answer>(std::size_t reading)>& answers);

/// The probes that a finding calls wrong, on which code may be watched; none where it is right.
std::vector<std::size_t> watched_probes(const Finding& finding, const std::vector<StateDict>& probes);
/// The textbook's arrays of a probe in the finding's conventions, "N ROUND STAGE NAME" after each stage that changed
/// one; N counts stages over all rounds. "-N ...": those that its mistakes give.
StateDict stages(const Finding& finding, const StateDict& probe);
/// Sets `where` to the first step that is not right, of those that the answers hold (is_step).
void compare_steps(Finding& finding, const std::vector<StateDict>& probes, const std::vector<Answer>& answers);

/// The code could not be judged: `verdict` is "failed" or "unfilled", `says` one line; `check` failed, where the
/// verdict does not tell which.
Finding not_judged(const std::string& verdict, const std::string& says, const std::string& traceback = {},
    const std::string& check = {});

/// The judge's sentences in Chinese, from text/zh/*.txt.
void add_chinese(Sentences& to);
/// These alone.
const Sentences& chinese();

struct Style {
  std::function<std::string(std::string_view)> bold, faint;
  std::size_t columns = 80;
};
/// Its first line, in English: "wrong: no-scale"; what it means follows, in lines that fit.
std::string first_line(const Finding& finding, bool hint);
/// As `qkv judge` prints it; `hint`: where to look, not what is wrong.
std::string report(const Finding& finding, bool hint, const Style& style);

}  // namespace qkv::judge
