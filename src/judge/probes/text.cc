// Probes as tasks.txt writes them: a task's tensors are drawn by their axes, then a probe's statements change them.
#include <charconv>

#include "judge/probes/probes.h"
#include "judge/text/language.h"

namespace qkv::judge {

/// "NAME | B 1, eps 0.001 | x = x * 1000": sizes by letter, numbers of the metadata, statements (../text/language.h).
std::vector<Probe> text_probes(ProbeMaker& make) {
  std::vector<Probe> probes;
  for (std::string_view line : make.task.probe_lines) {
    const Sizes& s = make.s;
    std::map<std::string_view, Index> letters = make.task.letters;
    letters.insert({{"B", s.batch}, {"L", s.length}, {"T", s.length}, {"M", s.memory}, {"S", s.memory}, {"E", s.embed},
        {"H", s.heads}, {"Hkv", s.kv_heads}, {"d", s.head_dim}, {"P", s.heads * s.head_dim},
        {"G", s.kv_heads * s.head_dim}, {"F", s.hidden}});
    Probe probe = make.start(cut(line, "|"));
    for (const auto& [name, number] : pairs_of(cut(line, "|"))) {
      if (const auto letter = letters.find(name); letter != letters.end()) {
        std::from_chars(number.data(), number.data() + number.size(), letter->second);
      } else {
        probe.metadata[std::string(name)] = number;
      }
    }
    for (const Argument& argument : make.task.arguments) {
      Shape shape;
      for (const std::string_view axis : words_of(argument.axes)) {
        const auto [factor, letter] = cut_axis(axis);
        shape.push_back(letter.empty() ? factor : factor * letters.at(letter));
      }
      Array& drawn = probe.inputs[std::string(argument.name)] = make.draw.array(shape);
      if (argument.below.empty()) continue;
      for (Number& x : drawn.data) x = static_cast<double>(make.draw.below(letters.at(argument.below)));
    }
    Work work(probe);
    for (const auto& [name, array] : probe.inputs) work[name] = array;
    if (!line.empty()) parse_step(line)(work, 0);
    for (auto& [name, array] : probe.inputs)
      array = map(work.at(name), [](Number x) { return Number(static_cast<float>(x.value)); });
    probes.push_back(std::move(probe));
  }
  if (make.task.takes("dout")) {
    probes.push_back(probes.front());
    probes.back().metadata["name"] = probes.back().metadata["call"] = "gradient";
  }
  probes.push_back(called_twice(probes.front()));
  return probes;
}

}  // namespace qkv::judge
