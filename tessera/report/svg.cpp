// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/svg.h"

#include <fmt/format.h>

namespace tessera::report {

std::string svg_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string svg_picture(double width, double height, const std::string& content) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
             "width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"12\" "
             "fill=\"#333\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n",
             width,
             height) +
         content + "</svg>\n";
}

std::string svg_label(
    double x, double y, const char* anchor, const std::string& text, const char* color) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n",
                     x,
                     y,
                     anchor,
                     color,
                     svg_escaped(text));
}

}  // namespace tessera::report
