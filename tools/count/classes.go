package main

import "strings"

// A class says to which total the files of a package belong. Tests have a separate total.
type class string

const (
	product class = "product"
	support class = "support"
	command class = "commands"
	example class = "examples"
	tool    class = "tools"
)

// classes assigns folders to classes. An entry applies to the folder and to all folders below it,
// and the first matching entry decides. Folders without a matching entry are product. The entries
// of support include folders of earlier versions, so that their totals can be compared.
var classes = []struct {
	folder string
	class  class
}{
	{"cmd", command},
	{"examples", example},
	{"tools", tool},
	{"bench", tool},

	{"internal/test", support},
	{"transport/transporttest", support},
	{"transport/flaky", support},
	{"transport/verbs/softdevice", support},
}

// classOf returns the class of the package in a folder. The folder's path is relative to the
// module and uses slashes.
func classOf(folder string) class {
	for _, c := range classes {
		if folder == c.folder || strings.HasPrefix(folder, c.folder+"/") {
			return c.class
		}
	}
	return product
}
