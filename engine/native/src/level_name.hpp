// The name of a level (LEVEL, of CMakeLists.txt) as part of another name, and as text.
#pragma once

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
