// SPDX-License-Identifier: Apache-2.0
// Class names in the configurations of Python programs: dict(type="GPT2_exlarge").
#pragma once

#include <optional>
#include <string>

namespace tessera::interop {

/// The last part of a dotted name: "Adam" for "torch.optim.Adam".
std::string python_class_name(const std::string& dotted);
/// The preset of a model family with the class's name, compared case-insensitively and with "-" for
/// "_": "gpt2-exlarge" for "GPT2_exlarge".
std::optional<std::string> preset_of_python_class(const std::string& name);

}  // namespace tessera::interop
