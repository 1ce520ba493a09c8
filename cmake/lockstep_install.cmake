# cmake --install: headers, libraries, programs and the package files.
