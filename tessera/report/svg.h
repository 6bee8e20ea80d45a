// SPDX-License-Identifier: Apache-2.0
// Parts of SVG pictures.
#pragma once

#include <string>

namespace tessera::report {

/// Returns the text with the characters replaced that have a meaning in XML; control characters
/// become spaces.
std::string svg_escaped(const std::string& text);
/// Returns a picture of `width` times `height` pixels with a white background around `content`.
std::string svg_picture(double width, double height, const std::string& content);
/// Returns a text; `anchor`: "start", "middle" or "end".
std::string svg_label(
    double x, double y, const char* anchor, const std::string& text, const char* color = "#333");

}  // namespace tessera::report
