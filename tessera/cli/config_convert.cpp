// SPDX-License-Identifier: Apache-2.0
// tessera config convert FILE --to X: converts a configuration to another system's keys.
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/config_commands.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/foreign_program.h"
#include "tessera/interop/config_dialects.h"

namespace tessera::cli {

int convert_file(const std::vector<std::string>& line) {
  const bool dashes = !line.empty() && line.front() == "--";
  if (dashes || interop::is_foreign_command(line)) return convert_command(line);
  std::string file, to;
  Common common;
  Arguments arguments(
      "config convert",
      "Writes FILE in the format of another system; keys without a counterpart are "
      "listed on standard "
      "error.",
      {"tessera config convert ds_config.json --to tessera > my.json",
       "tessera config convert colossal_config.py --to deepspeed",
       "tessera config convert my.json --to colossalai",
       "tessera config convert -- torchrun run_clm.py --model_name_or_path gpt2 ..."});
  arguments.positional("FILE", &file, "JSON, Hjson, base64 or Colossal-AI's Python");
  arguments.option("--to", &to, "tessera, deepspeed or colossalai");
  arguments.common(common);
  if (!arguments.parse(line)) return kExitOk;
  TESSERA_REQUIRE(!to.empty(),
                  Config,
                  "tessera config convert: --to is missing",
                  "--to tessera, deepspeed or colossalai");
  const interop::Dialect dialect = interop::dialect_named(to);
  const auto [source, python] = read_config_or_python(file);
  const interop::Dialect from = python ? interop::Dialect::ColossalAi : interop::dialect_of(source);
  const interop::Converted out = interop::convert_config(source, from, dialect);
  std::printf("%s\n", out.value.dump(2).c_str());
  std::fflush(stdout);
  for (const std::string& note : out.notes)
    log::warn(note);
  return kExitOk;
}

}  // namespace tessera::cli
