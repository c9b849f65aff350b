#include "support/command.h"

namespace qkv::cli {

std::vector<Command>& commands() {
  static std::vector<Command> all;  // made at first use: commands are added while statics are initialised
  return all;
}

bool add_command(Command command) {
  commands().push_back(std::move(command));
  return true;
}

}  // namespace qkv::cli
