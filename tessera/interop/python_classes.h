// SPDX-License-Identifier: Apache-2.0
// Classes that configurations of Python programs name: dict(type="GPT2_exlarge").
#pragma once

#include <optional>
#include <string>

namespace tessera::interop {

/// The last part of a dotted name: "Adam" of "torch.optim.Adam".
std::string python_class_name(const std::string& dotted);
/// The preset of a model family whose name the class has, without regard to case and with "-" for
/// "_": "gpt2-exlarge" for "GPT2_exlarge".
std::optional<std::string> preset_of_python_class(const std::string& name);

}  // namespace tessera::interop
